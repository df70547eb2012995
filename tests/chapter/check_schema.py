"""Validates a result file against the schema: check_schema.py SCHEMA RESULT."""
import json
import sys

import jsonschema

schema_path, result_path = sys.argv[1:]
with open(schema_path) as f:
    schema = json.load(f)
with open(result_path) as f:
    result = json.load(f)
jsonschema.Draft7Validator.check_schema(schema)
errors = sorted(jsonschema.Draft7Validator(schema).iter_errors(result), key=str)
for error in errors:
    print("/".join(map(str, error.absolute_path)), error.message)
sys.exit(1 if errors else 0)
