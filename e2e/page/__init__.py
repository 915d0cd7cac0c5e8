"""The page behind a real oauth2-proxy, on a kube-apiserver that trusts the provider which logs its users in."""
