"""Whole models in files: architecture and layouts as JSON, arrays in safetensors.

A module is what its attributes hold, so its architecture is written as they are: numbers, texts,
containers, layouts, functions by name, and objects of known classes. Loading makes objects without
calling anything: classes and functions are looked up among those of gdt and those that a program
has registered, and nothing else in a file has an effect.
"""

from typing import TYPE_CHECKING

from gdt.errors.foreign_names import missing_names
from gdt.saving.model import load_model, save_model
from gdt.saving.registry import register
from gdt.saving.weights import load_weights

__all__ = ["load_model", "load_weights", "register", "save_model"]

if not TYPE_CHECKING:  # a type checker would take every name for one of the module
    __getattr__ = missing_names(__name__)
