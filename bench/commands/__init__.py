"""One module a command. What is heavy is imported when the command runs, not before."""
