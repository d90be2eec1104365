"""Recorded steps as CUDA graphs: a graph for each part of a program that only computes."""
