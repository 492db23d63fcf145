"""The report as one HTML page that needs nothing else: context, template, figures as SVG and their numbers."""
