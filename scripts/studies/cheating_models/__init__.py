"""Models that only look robust, and which flags find them."""
