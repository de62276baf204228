"""The harness: runs variants as processes of their own, and turns their records into tables, plots and a report."""
