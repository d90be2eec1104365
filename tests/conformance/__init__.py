"""The conformance suite of the array API standard, on split arrays.

`python -m tests.conformance SUITE` runs a checkout of data-apis/array-api-tests, of any version, in
this environment; `plugin` places what the suite creates, and counts.
"""
