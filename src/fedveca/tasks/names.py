"""What the record calls objects of the user's; apart from those objects, so that it is known without PyTorch."""

CUSTOM = "custom:"  # what the settings of a run call an object that was given from Python
