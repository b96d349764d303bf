"""TensorFlow on two ranks: the same script on one machine and on a cluster."""
