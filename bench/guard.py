"""`python guard.py PARENT COMMAND...`: become COMMAND, which gets SIGTERM when the process PARENT dies.

For Linux. A wrapper rather than `preexec_fn`, which may deadlock in a program with threads. SIGTERM, as
torchrun ends its workers on it; the ranks of torch.multiprocessing.spawn watch their own parent.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked to be told
        sys.exit(1)
    os.execvp(command[0], command)
