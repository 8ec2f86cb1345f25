"""The certificate as a page to read: `report.html`, and plots beside it."""
