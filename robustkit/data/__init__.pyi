from .dataset import EMBEDDED as EMBEDDED
from .dataset import Dataset as Dataset
from .dataset import Sample as Sample
from .dataset import open_dataset as open_dataset
from .images import to_pixels as to_pixels
from .scenes import LabelledScenes as LabelledScenes
from .scenes import open_scenes as open_scenes
