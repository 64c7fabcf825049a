"""The network that verifiers are given: a copy of the model in one form, whatever form it was written in."""
