"""The harness: runs variants as processes of their own, and makes tables, plots and a report of it."""
