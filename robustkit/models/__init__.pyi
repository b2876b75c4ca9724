from .classifier import load as load
from .dense import Segmenter as Segmenter
from .identity import Classifier as Classifier
from .segmenter import load_segmenter as load_segmenter
