"""The models that settings can name, as modules, and the way from BatchNorm to GroupNorm."""

from fedveca.tasks.models import Cnn as Cnn
from fedveca.tasks.models import Gpt as Gpt
from fedveca.tasks.models import ResNet18 as ResNet18
from fedveca.tasks.models import TokenLstm as TokenLstm
from fedveca.tasks.models import Vgg11 as Vgg11
from fedveca.tasks.models import to_group_norm as to_group_norm
