"""The page of the Python package: what it has, from the sources, as they say it."""
import ast
import html

from siting.rendering import Heading, code


def signature(name, node):
    if isinstance(node, ast.ClassDef):
        return f"class oomlab.{name}({', '.join(map(ast.unparse, node.bases))})"
    return f"oomlab.{name}({ast.unparse(node.args)})"


def page(package):
    """(title, HTML, headings) of what `package` names in __all__."""
    front = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    public = next(ast.literal_eval(node.value) for node in front.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    where = {alias.name: node.module for node in front.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    title = "oomlab"
    out, headings = [f'<h1 id="{title}"><code>{title}</code></h1>\n', code(ast.get_docstring(front), "text")], [Heading(1, title, title)]
    for name in sorted(public, key=lambda name: (name[0].isupper(), name)):
        module = ast.parse((package / (where[name].split(".")[1] + ".py")).read_text(encoding="utf-8"))
        node = next(node for node in module.body if getattr(node, "name", None) == name)
        out += [f'<h2 id="{name}"><code>{html.escape(name)}</code></h2>\n', code(signature(name, node), "python"), code(ast.get_docstring(node), "text")]
        headings.append(Heading(2, name, name))
    return title, "".join(out), headings
