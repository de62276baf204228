"""The harness: runs variants in processes of their own and makes tables, plots and a report of it."""
