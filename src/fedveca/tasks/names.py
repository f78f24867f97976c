"""What the record calls objects of the user's; apart from those objects, so that it is known without PyTorch."""

CUSTOM = "custom:"  # what the settings of a run call an object that was given from Python
LONGEST_UNIT = 20  # characters of what a metric is measured in


def is_unit(text: str) -> bool:
    """Whether a text can be a unit: it is shown in one line with a number."""
    return text.isprintable() and len(text) <= LONGEST_UNIT
