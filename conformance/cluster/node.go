package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	nodeName    = "node"
	nodeAddress = "198.18.0.1"
	logsPort    = 10250
)

// The node of the cluster: scheduler and kubelet for pods that are one process each. A pod gets a network namespace
// with a veth pair to the bridge, and a directory with its program and its volumes as its root.
type node struct {
	client   kubernetes.Interface
	bridge   string
	programs string
	state    string
	lock     sync.Mutex
	free     netip.Addr
	// Pods that have been started, with their newest processes, and those that have been deleted: events arrive in any order.
	pods    map[types.UID]*process
	deleted map[types.UID]bool
	names   map[string]types.UID
}

// The process of a pod.
type process struct {
	command *exec.Cmd
	output  *output
	ended   chan struct{}
}

// Runs the node until SIGTERM. Arguments: kubeconfig, bridge, the first address of pods, the directory of programs
// (each named as the last component of the image that it stands for), the directory of the pods' files, certificate and
// key of the server of logs.
func runNode(arguments []string) error {
	if len(arguments) != 7 {
		return fmt.Errorf("usage: cluster node KUBECONFIG BRIDGE FIRST_ADDRESS PROGRAMS STATE CERTIFICATE KEY")
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400
	first, err := netip.ParseAddr(arguments[2])
	if err != nil {
		return err
	}
	n := &node{
		client: kubernetes.NewForConfigOrDie(config), bridge: arguments[1], free: first,
		programs: arguments[3], state: arguments[4], pods: map[types.UID]*process{}, deleted: map[types.UID]bool{}, names: map[string]types.UID{},
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() { fmt.Println(n.serveLogs(arguments[5], arguments[6])) }()
	if err := n.register(ctx); err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(n.client, 0)
	pods := factory.Core().V1().Pods().Informer()
	_, err = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { go n.change(ctx, o.(*core.Pod)) },
		UpdateFunc: func(_, o any) { go n.change(ctx, o.(*core.Pod)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			go n.end(o.(*core.Pod), 0)
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, p := range n.pods {
		_ = p.command.Process.Kill()
	}
	return nil
}

// Creates the Node, which is ready for ever: the cluster runs no controller of node leases.
func (n *node) register(ctx context.Context) error {
	room := core.ResourceList{
		core.ResourceCPU: resource.MustParse("64"), core.ResourceMemory: resource.MustParse("64Gi"),
		core.ResourcePods: resource.MustParse("1000"),
	}
	object := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: nodeName, Labels: map[string]string{
			core.LabelHostname: nodeName, core.LabelTopologyZone: "zone-a",
		}},
	}
	created, err := n.client.CoreV1().Nodes().Create(ctx, object, meta.CreateOptions{})
	if errors.IsAlreadyExists(err) {
		created, err = n.client.CoreV1().Nodes().Get(ctx, nodeName, meta.GetOptions{})
	}
	if err != nil {
		return err
	}
	created.Status = core.NodeStatus{Capacity: room, Allocatable: room, Conditions: []core.NodeCondition{{
		Type: core.NodeReady, Status: core.ConditionTrue, Reason: "Started",
		LastHeartbeatTime: meta.Now(), LastTransitionTime: meta.Now(),
	}}}
	created.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: nodeAddress}}
	created.Status.DaemonEndpoints.KubeletEndpoint.Port = logsPort
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, created, meta.UpdateOptions{})
	return err
}

// Brings a pod one step on: binds it, starts it, or ends it.
func (n *node) change(ctx context.Context, pod *core.Pod) {
	switch {
	case pod.DeletionTimestamp != nil:
		grace := int64(0)
		if pod.DeletionGracePeriodSeconds != nil {
			grace = *pod.DeletionGracePeriodSeconds
		}
		if pod.Spec.NodeName == nodeName {
			n.end(pod, time.Duration(grace)*time.Second)
			now := meta.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &meta.Preconditions{UID: &pod.UID}}
			_ = n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, now)
		}
	case pod.Spec.NodeName == "":
		binding := &core.Binding{
			ObjectMeta: meta.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     core.ObjectReference{Kind: "Node", Name: nodeName},
		}
		err := n.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, meta.CreateOptions{})
		if err != nil && !errors.IsConflict(err) && !errors.IsNotFound(err) {
			say(pod, "not bound: %v", err)
		}
	case pod.Spec.NodeName == nodeName && pod.Status.Phase == core.PodPending:
		n.lock.Lock()
		_, known := n.pods[pod.UID]
		if !known {
			n.pods[pod.UID] = nil
		}
		n.lock.Unlock()
		if !known {
			n.run(ctx, pod)
		}
	}
}

// Runs the program of a pod until the pod is deleted, and again a second after it has ended.
func (n *node) run(ctx context.Context, pod *core.Pod) {
	n.lock.Lock()
	address := n.free
	n.free = n.free.Next()
	n.lock.Unlock()
	for restarts := int32(0); n.wants(pod) && ctx.Err() == nil; restarts++ {
		p, err := n.start(ctx, pod, address)
		switch {
		case errors.IsNotFound(err):
			say(pod, "waits: %v", err)
		case err != nil:
			say(pod, "not started: %v", err)
		case !n.keep(pod, p):
			_ = p.command.Process.Kill()
			<-p.ended
		case p.waitForSocket():
			say(pod, "ready at %s", address)
			n.report(ctx, pod, address, restarts, true)
			<-p.ended
		}
		if n.wants(pod) && ctx.Err() == nil {
			say(pod, "not running: its output is in logs/pod-%s-%s", pod.Namespace, pod.Name)
			n.report(ctx, pod, address, restarts, false)
			time.Sleep(time.Second)
		}
	}
	_ = os.RemoveAll(filepath.Join(n.state, string(pod.UID)))
}

// Returns the output of the newest process of a pod; nil if none has been started.
func (n *node) outputOf(namespace, name string) *output {
	n.lock.Lock()
	defer n.lock.Unlock()
	if p := n.pods[n.names[namespace+"/"+name]]; p != nil {
		return p.output
	}
	return nil
}

// Whether a pod has been started and not been deleted since.
func (n *node) wants(pod *core.Pod) bool {
	n.lock.Lock()
	defer n.lock.Unlock()
	_, started := n.pods[pod.UID]
	return started && !n.deleted[pod.UID]
}

// Keeps the process of a pod for its end, unless the pod has been deleted.
func (n *node) keep(pod *core.Pod, p *process) bool {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.pods[pod.UID] = p
	n.names[pod.Namespace+"/"+pod.Name] = pod.UID
	return !n.deleted[pod.UID]
}

// Waits until a socket listens in the network namespace of the process. Returns false if the process ends first.
func (p *process) waitForSocket() bool {
	for !listens(p.command.Process.Pid) {
		select {
		case <-p.ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// Ends the process of a pod: SIGTERM, and SIGKILL after `grace`.
func (n *node) end(pod *core.Pod, grace time.Duration) {
	n.lock.Lock()
	p := n.pods[pod.UID]
	n.deleted[pod.UID] = true
	n.lock.Unlock()
	if p == nil {
		return
	}
	if grace > 0 {
		_ = p.command.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(grace):
		}
	}
	_ = p.command.Process.Kill()
	<-p.ended
	say(pod, "gone")
}

// Makes the root directory and the network namespace of a pod, and starts its program there.
func (n *node) start(ctx context.Context, pod *core.Pod, address netip.Addr) (*process, error) {
	if len(pod.Spec.Containers) != 1 {
		return nil, fmt.Errorf("%d containers: a pod has one here", len(pod.Spec.Containers))
	}
	container := pod.Spec.Containers[0]
	image := container.Image[strings.LastIndexByte(container.Image, '/')+1:]
	image, _, _ = strings.Cut(image, ":")
	program, err := os.ReadFile(filepath.Join(n.programs, image))
	if err != nil {
		return nil, fmt.Errorf("no program stands for the image %s: %w", container.Image, err)
	}
	root := filepath.Join(n.state, string(pod.UID))
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := n.writeVolumes(ctx, pod, container, root); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(root, "program"), program, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(n.state), "logs", "pod-"+pod.Namespace+"-"+pod.Name)
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	command := exec.Command("/program", append(append([]string{}, container.Command...), container.Args...)...)
	command.Dir, command.Env = "/", environment(pod, container, address)
	out := &output{file: log}
	command.Stdout, command.Stderr = out, out
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWNET}
	if err := command.Start(); err != nil {
		log.Close()
		return nil, err
	}
	p := &process{command: command, output: out, ended: make(chan struct{})}
	go func() {
		_ = command.Wait()
		log.Close()
		close(p.ended)
	}()
	if err := n.connect(command.Process.Pid, address); err != nil {
		_ = command.Process.Kill()
		return nil, err
	}
	return p, nil
}

// Connects the network namespace of a process to the bridge. The devices disappear with the namespace.
func (n *node) connect(pid int, address netip.Addr) error {
	id, inside := strconv.Itoa(pid), []string{"nsenter", "-t", strconv.Itoa(pid), "-n", "ip"}
	for _, line := range [][]string{
		{"ip", "link", "add", "pod" + id, "type", "veth", "peer", "name", "eth0", "netns", id},
		{"ip", "link", "set", "pod" + id, "master", n.bridge, "up"},
		append(inside, "link", "set", "lo", "up"),
		append(inside, "address", "add", address.String()+"/15", "dev", "eth0"),
		append(inside, "link", "set", "eth0", "up"),
	} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, out)
		}
	}
	return nil
}

// Writes the volumes of Secrets and ConfigMaps below the root of a pod, where the container mounts them.
func (n *node) writeVolumes(ctx context.Context, pod *core.Pod, container core.Container, root string) error {
	places := map[string]string{}
	for _, mount := range container.VolumeMounts {
		places[mount.Name] = filepath.Join(root, filepath.Clean("/"+mount.MountPath))
	}
	for _, volume := range pod.Spec.Volumes {
		files, items := map[string][]byte{}, []core.KeyToPath(nil)
		switch {
		case places[volume.Name] == "":
			continue
		case volume.Secret != nil:
			secret, err := n.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, meta.GetOptions{})
			if err != nil {
				return err
			}
			files, items = secret.Data, volume.Secret.Items
		case volume.ConfigMap != nil:
			object, err := n.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, meta.GetOptions{})
			if err != nil {
				return err
			}
			for key, text := range object.Data {
				files[key] = []byte(text)
			}
			for key, bytes := range object.BinaryData {
				files[key] = bytes
			}
			items = volume.ConfigMap.Items
		case volume.EmptyDir != nil:
		default:
			return fmt.Errorf("volume %s: only Secrets, ConfigMaps and empty directories are mounted here", volume.Name)
		}
		if err := writeFiles(places[volume.Name], files, items); err != nil {
			return err
		}
	}
	return nil
}

func writeFiles(directory string, files map[string][]byte, items []core.KeyToPath) error {
	if items == nil {
		for key := range files {
			items = append(items, core.KeyToPath{Key: key, Path: key})
		}
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	for _, item := range items {
		path := filepath.Join(directory, filepath.Clean("/"+item.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[item.Key], 0o600); err != nil {
			return err
		}
	}
	return nil
}

func environment(pod *core.Pod, container core.Container, address netip.Addr) []string {
	fields := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"spec.nodeName": nodeName, "status.podIP": address.String(),
	}
	variables := []string{"HOSTNAME=" + pod.Name}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil {
			value = fields[variable.ValueFrom.FieldRef.FieldPath]
		}
		variables = append(variables, variable.Name+"="+value)
	}
	return variables
}

// Whether a TCP socket of the network namespace of a process listens, or a UDP socket is bound.
func listens(pid int) bool {
	for table, state := range map[string]string{"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for _, line := range strings.Split(string(text), "\n")[1:] {
			if columns := strings.Fields(line); len(columns) > 3 && columns[3] == state {
				return true
			}
		}
	}
	return false
}

// Writes the status of a pod: its process runs and is ready, or waits for its next start.
func (n *node) report(ctx context.Context, pod *core.Pod, address netip.Addr, restarts int32, ready bool) {
	status := core.PodStatus{
		Phase: core.PodRunning, StartTime: &meta.Time{Time: time.Now()},
		PodIP: address.String(), PodIPs: []core.PodIP{{IP: address.String()}},
	}
	truth := core.ConditionFalse
	if ready {
		truth = core.ConditionTrue
	}
	for _, kind := range []core.PodConditionType{core.PodScheduled, core.PodInitialized, core.ContainersReady, core.PodReady} {
		condition := core.PodCondition{Type: kind, Status: truth, LastTransitionTime: meta.Now()}
		if kind == core.PodScheduled || kind == core.PodInitialized {
			condition.Status = core.ConditionTrue
		}
		status.Conditions = append(status.Conditions, condition)
	}
	container := core.ContainerStatus{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: ready, Started: &ready, RestartCount: restarts,
	}
	if ready {
		container.State.Running = &core.ContainerStateRunning{StartedAt: meta.Now()}
	} else {
		container.State.Waiting = &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
	}
	status.ContainerStatuses = []core.ContainerStatus{container}
	err := wait.ExponentialBackoff(wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Steps: 6}, func() (bool, error) {
		current, err := n.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, meta.GetOptions{})
		if err != nil || current.UID != pod.UID {
			return errors.IsNotFound(err) || err == nil, nil
		}
		status.QOSClass = current.Status.QOSClass
		current.Status = status
		_, err = n.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, current, meta.UpdateOptions{})
		return err == nil, nil
	})
	if err != nil {
		say(pod, "status not written: %v", err)
	}
}

func say(pod *core.Pod, text string, arguments ...any) {
	fmt.Printf("%s %s/%s %s\n", time.Now().Format("15:04:05.000"), pod.Namespace, pod.Name, fmt.Sprintf(text, arguments...))
}
