"""Policy files for controllers."""
