"""DIJob: a coordinator that the operator creates, and replicas that di-server creates on its request."""
