module trainwright.dev/cluster/etcd

go 1.26.0
