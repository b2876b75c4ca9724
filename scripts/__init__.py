"""Scripts that measure, train and write pages; run in the root of the repository as `python -m scripts.FOLDER.NAME`."""
