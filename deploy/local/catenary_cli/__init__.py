"""The catenary command: a whole mesh on one machine, and its sisters."""
