"""Attention: the fused operation, the masks, and the module with torch's parameter names."""
