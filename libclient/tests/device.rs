//! Tensors on devices.
