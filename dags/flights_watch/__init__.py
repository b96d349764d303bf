"""A small model of late flights, served with a log of its requests, watched for drift, and trained again."""
