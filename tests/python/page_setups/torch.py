import sys

import page_models
import torch_stand_in

sys.modules["torch"] = torch_stand_in
page_models.write()
