"""Scripts that measure, train and write pages; run from the root of the repository as `python -m scripts.FOLDER.NAME`."""
