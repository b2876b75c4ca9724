from . import attention as attention
from .common.plugins import load_plugin as load_plugin
from .common.plugins import plugin_session as plugin_session
from .gate.checked import check as check
from .models.classifier import load as load
from .models.dense import Segmenter as Segmenter
from .models.identity import Classifier as Classifier
from .models.segmenter import load_segmenter as load_segmenter
from .pipeline.audit import audit as audit
from .pipeline.audit import segment as segment
from .report.refresh import merge as merge
from .report.refresh import report as report
from .report.run import Run as Run
from .results.compared import compare as compare
from .results.methods import compare_methods as compare_methods
from .slices.detection.plan import detection as detection
from .slices.features.plan import features as features
from .slices.gallery.drawing import cam as cam
from .slices.inspect.inspection import inspect as inspect
from .slices.multilabel.plan import multilabel as multilabel
from .slices.paper.plan import plan as plan
from .slices.paper.table import table as table
from .slices.series.plan import series as series
from .slices.text.plan import text as text

__version__: str
