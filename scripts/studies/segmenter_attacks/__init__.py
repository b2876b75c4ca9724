"""By how much SegPGD alone overestimates the robustness of segmenters."""
