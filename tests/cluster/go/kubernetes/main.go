// One binary for the programs of a Kubernetes, which goes by the name that it is called with: they
// share nearly all of their code, so together they take a third of the room and of the memory.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	command, err := program(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if name == "kubectl" {
		if err := cli.RunNoErrOutput(command); err != nil {
			util.CheckErr(err)
		}
		return
	}
	os.Exit(cli.Run(command))
}

func program(name string) (*cobra.Command, error) {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand(), nil
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand(), nil
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand(), nil
	case "kubelet":
		return kubelet.NewKubeletCommand(context.Background()), nil
	case "kube-proxy":
		return proxy.NewProxyCommand(), nil
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand(), nil
	}
	return nil, fmt.Errorf("%s: not one of kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl", name)
}
