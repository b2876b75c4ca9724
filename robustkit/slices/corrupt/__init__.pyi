from .drift import compare_tree as compare_tree
from .sheet import write_sheets as write_sheets
from .tree import corrupt_tree as corrupt_tree
