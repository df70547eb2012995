"""Validates result files against the schema: check_schema.py SCHEMA RESULT..."""
import json
import pathlib
import sys

import jsonschema

schema = json.loads(pathlib.Path(sys.argv[1]).read_text())
jsonschema.Draft7Validator.check_schema(schema)
errors = [f"{path}: {'/'.join(map(str, error.absolute_path))} {error.message}" for path in sys.argv[2:]
          for error in sorted(jsonschema.Draft7Validator(schema).iter_errors(json.loads(pathlib.Path(path).read_text())), key=str)]
print("\n".join(errors))
sys.exit(1 if errors or not sys.argv[2:] else 0)
