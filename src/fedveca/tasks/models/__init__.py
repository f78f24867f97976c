"""What is trained: the models that can be named, one file per family, and custom modules."""

from fedveca.tasks.models.build import Model as Model
from fedveca.tasks.models.build import Sample as Sample
from fedveca.tasks.models.build import model as model
from fedveca.tasks.models.cnn import Cnn as Cnn
from fedveca.tasks.models.linear import build_logistic as build_logistic
from fedveca.tasks.models.linear import build_mlp as build_mlp
from fedveca.tasks.models.linear import build_svm as build_svm
from fedveca.tasks.models.norm import to_group_norm as to_group_norm
from fedveca.tasks.models.registry import INITS as INITS
from fedveca.tasks.models.registry import MODELS as MODELS
from fedveca.tasks.models.registry import NORMS as NORMS
from fedveca.tasks.models.registry import ModelEntry as ModelEntry
from fedveca.tasks.models.registry import Shape as Shape
from fedveca.tasks.models.registry import Task as Task
from fedveca.tasks.models.registry import named_model as named_model
from fedveca.tasks.models.text import Gpt as Gpt
from fedveca.tasks.models.text import TokenLstm as TokenLstm
from fedveca.tasks.models.vision import ResNet18 as ResNet18
from fedveca.tasks.models.vision import Vgg11 as Vgg11

_entries = sorted(MODELS.items())
MODELS.clear()
MODELS.update(_entries)  # by name, whoever imported whom
