module muster.test/prometheus-operator

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0 // its definitions of kinds alone: nothing of it is built
