package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"
)

// Output of a pod: in its file, and in memory with the time of each write.
type output struct {
	lock   sync.Mutex
	file   *os.File
	writes []write
}

type write struct {
	at   time.Time
	text []byte
}

func (o *output) Write(text []byte) (int, error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.writes = append(o.writes, write{time.Now(), bytes.Clone(text)})
	return o.file.Write(text)
}

// Serves the part of a kubelet's interface that the API server asks for the logs of a pod.
func (n *node) serveLogs(certificate, key string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("sinceTime"))
		out := n.outputOf(r.PathValue("namespace"), r.PathValue("pod"))
		if out == nil {
			http.NotFound(w, r)
			return
		}
		out.lock.Lock()
		defer out.lock.Unlock()
		for _, write := range out.writes {
			if !write.at.Before(since) {
				_, _ = w.Write(write.text)
			}
		}
	})
	return http.ListenAndServeTLS(fmt.Sprintf("%s:%d", nodeAddress, logsPort), certificate, key, mux)
}
