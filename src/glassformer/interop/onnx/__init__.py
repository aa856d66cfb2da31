"""Runs written as ONNX graphs, in the layout that transformers.js and optimum read, and translated with onnxruntime."""
