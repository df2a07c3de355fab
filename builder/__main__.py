"""`python -m builder`, the same as `spark-build`."""

from builder.cli import entry

if __name__ == "__main__":
    entry()
