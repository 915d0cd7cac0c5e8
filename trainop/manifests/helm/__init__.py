"""The Helm charts: the objects of the kustomizations, with expressions where values go.

`template` writes trees with expressions as templates, `values` the values with their comments and schema, `pod` places
what every Deployment can be given, `chart` makes the files of one chart; each other module is one chart.
"""
