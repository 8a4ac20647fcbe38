"""Reciprocal-space mapping: detector frames with their angles in, sparse voxel records of a 3-D grid out."""
