package main

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	cached "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/replicaset"
)

// Runs the controllers of kube-controller-manager that Deployments, Services and namespaces need, until SIGTERM. The
// whole of it has 290 more packages to compile.
func runControllers(arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: cluster controllers KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	client := kubernetes.NewForConfigOrDie(config)
	metadataClient := metadata.NewForConfigOrDie(config)
	objects := informers.NewSharedInformerFactory(client, 0)
	others := metadatainformer.NewSharedInformerFactory(metadataClient, 0)
	all, started := informerfactory.NewInformerFactory(objects, others), make(chan struct{})
	apps, base := objects.Apps().V1(), objects.Core().V1()

	namespaces := namespace.NewNamespaceController(ctx, client, metadataClient,
		client.Discovery().ServerPreferredNamespacedResources, base.Namespaces(), 5*time.Minute, core.FinalizerKubernetes)
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), base.Pods(), client)
	if err != nil {
		return err
	}
	replicaSets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), base.Pods(), client, replicaset.BurstReplicas)
	slices := endpointslice.NewController(ctx, base.Pods(), base.Services(), base.Nodes(), objects.Discovery().V1().EndpointSlices(), 100, client, 0)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached.NewMemCacheClient(client.Discovery()))
	garbage, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient, mapper, garbagecollector.DefaultIgnoredResources(), all, started)
	if err != nil {
		return err
	}

	go namespaces.Run(ctx, 5)
	go deployments.Run(ctx, 5)
	go replicaSets.Run(ctx, 5)
	go slices.Run(ctx, 5)
	go garbage.Run(ctx, 5, 30*time.Second)
	go garbage.Sync(ctx, client.Discovery(), 2*time.Second)
	all.Start(ctx.Done())
	close(started)
	<-ctx.Done()
	return nil
}
