"""The steps of a plan: each adds actions, notices and changes of the status to the plan that is being built."""
