module trainop.test/mpi-operator-e2e

go 1.25.0

tool github.com/kubeflow/mpi-operator/test/e2e

require github.com/kubeflow/mpi-operator v0.8.0 // indirect
