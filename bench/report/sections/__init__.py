"""The parts of a machine's section that come from its studies, in the order of the report.

Each module has `section(machine, pictures)`: Markdown that begins with its heading, "" where there is nothing
to tell. `pictures`: the figures by name, in Markdown.
"""

from collections.abc import Sequence
from types import ModuleType

SECTIONS: Sequence[ModuleType] = ()
