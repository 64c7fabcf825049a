"""Single instances in the format of the verification competition: VNN-LIB and ONNX."""
