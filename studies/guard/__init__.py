"""What guard=on does where training diverges, and where it does not."""
