// One program with the parts of a small Kubernetes cluster: etcd, kube-apiserver, controllers of
// kube-controller-manager, and a node without containers. The first argument names the part; scripts/cluster starts one process for each.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: cluster etcd|kube-apiserver|controllers|node [ARGUMENT…]")
		os.Exit(2)
	}
	part := os.Args[1]
	os.Args = append([]string{part}, os.Args[2:]...)
	switch part {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "controllers":
		end(runControllers(os.Args[1:]))
	case "node":
		end(runNode(os.Args[1:]))
	default:
		fmt.Fprintf(os.Stderr, "cluster: there is no part %q\n", part)
		os.Exit(2)
	}
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}
