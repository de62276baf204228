"""REPORT.md: collect the records, compare them, write the sections."""
