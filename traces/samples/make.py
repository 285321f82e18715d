#!/usr/bin/env python3
# Makes the samples of this folder but sample.blkparse.txt (recorded) and sample.parquet (converted from it), the same
# bytes each time. All requests are invented; the shapes are those of the formats' own documentation.
import os, random, struct
d = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
rnd=random.Random(20261122)
def ops(n, devices=1):
    t=0; out=[]
    for i in range(n):
        t+=rnd.choice([17_000,250_000,1_900_000,31_000_000])+rnd.randrange(0,9000)*100
        w=rnd.random()<0.6
        dev=rnd.randrange(devices)
        off=rnd.randrange(0,4096)*8*512 if rnd.random()<0.8 else rnd.randrange(0,32768)*512
        ln=rnd.choice([4096,4096,8192,65536,512])
        lat=rnd.choice([90_000,210_000,1_300_000])+rnd.randrange(0,900)*100
        out.append((t,w,dev,off,ln,lat))
    return out
def save(name,text):
    open(d+name,'wb').write(text if isinstance(text,bytes) else text.encode())
N=24
b=128166372003061629
save('sample.msr.csv',''.join(f"{b+t//100},web,{dev},{'Write' if w else 'Read'},{o},{l},{lat//100}\n" for t,w,dev,o,l,lat in ops(N,2)))
rows=ops(N,3)
txt="Timestamp,Response,IOType,LUN,Offset,Size\n"
for i,(t,w,dev,o,l,lat) in enumerate(rows):
    t-=t%1000
    s=1455592765*10**9+t
    kind='' if i==9 else 'W' if w else 'R'
    resp='' if i==14 else f"{lat//10**9}.{lat%10**9:09}"
    txt+=f"{s//10**9}.{s%10**9:09},{resp},{kind},{dev},{o},{l}\n"
save('sample.systor17.csv',txt)
save('sample.alibaba.csv',''.join(f"{[3,419,3,7][dev]},{'W' if w else 'R'},{o},{l},{1577808000000046+t//1000}\n" for t,w,dev,o,l,lat in ops(N,4)))
save('sample.tencent.csv',''.join(f"{1538323200+i//4},{o//512},{l//512},{int(w)},{[1283,1576][dev]}\n" for i,(t,w,dev,o,l,lat) in enumerate(ops(N,2))))
save('sample.mqsim.txt',''.join(f"{938513000+t} {[4,3,13][dev]} {o//512} {l//512} {0 if w else 1}\n" for t,w,dev,o,l,lat in ops(N,3)))
save('sample.ssdsim.txt',''.join(f"{t} 0 {o//512} {l//512} {0 if w else 1}\n" for t,w,dev,o,l,lat in ops(N)))
save('sample.spc.csv',''.join(f"{dev},{o//512},{l},{'w' if w else 'r'},{t//10**9}.{t%10**9//1000:06}{',extra' if i==5 else ''}\n" for i,(t,w,dev,o,l,lat) in enumerate(ops(N,2))))
save('sample.femu.csv',''.join(f"{t//10**6}.{t%10**6//1000:03},{dev},{o},{l},{0 if w else 1}\n" for t,w,dev,o,l,lat in ops(N,2)))
# fio 2 and 3
txt="fio version 2 iolog\n/dev/nvme0n1 add\n/dev/nvme1n1 add\n/dev/nvme0n1 open\n/dev/nvme1n1 open\n"
prev=0
for i,(t,w,dev,o,l,lat) in enumerate(ops(N,2)):
    us=t//1000; f=f"/dev/nvme{dev}n1"
    if us>prev: txt+=f"{f} wait {us-prev} 0\n"; prev=us
    if i%8==5: txt+=f"{f} {'sync' if i==5 else 'datasync'} 0 0\n"
    elif i%8==6: txt+=f"{f} trim {o} {l*4}\n"
    else: txt+=f"{f} {'write' if w else 'read'} {o} {l}\n"
txt+="/dev/nvme0n1 close\n/dev/nvme1n1 close\n"
save('sample.fio2.iolog',txt)
txt="fio version 3 iolog\n0 /dev/nvme0n1 add\n3 /dev/nvme0n1 open\n"
for i,(t,w,dev,o,l,lat) in enumerate(ops(N)):
    us=5+t//1000; f="/dev/nvme0n1"
    if i%8==5: txt+=f"{us} {f} sync 0 0\n"
    elif i%8==6: txt+=f"{us} {f} trim {o} {l*4}\n"
    else: txt+=f"{us} {f} {'write' if w else 'read'} {o} {l}\n"
txt+=f"{us+9} {f} close\n"
save('sample.fio3.iolog',txt)
# wiscsee: events with completions
ev=[]
for i,(t,w,dev,o,l,lat) in enumerate(ops(N)):
    op='discard' if i%8==6 else 'write' if w else 'read'
    ev.append((t,2*i,f"29162 D {op} {o} {l}",)); ev.append((t+lat,2*i+1,f"29162 C {op} {o} {l}"))
ev.sort()
save('sample.wiscsee.txt',''.join(f"{s} {t//10**9}.{t%10**9:09} 0 False\n" for t,_,s in ev))
# blktrace, a file per CPU
Q,D,C=1|1<<20,7|1<<22,8|1<<23
W,F,S,M,DI,FUA=1<<17,1<<18,1<<19,1<<28,1<<29,1<<31
R=1<<16
files={0:[],1:[]}
seq={0:0,1:0}
def put(cpu,t,sector,n,act,pdu=b'',pid=812):
    seq[cpu]+=1
    files[cpu].append(struct.pack('<IIQQIIIIIHH',0x65617407,seq[cpu],t,sector,n,act&0xffffffff,pid,8<<20|16,cpu,0,len(pdu))+pdu)
put(0,0,0,0,0|1<<26,b'fio\0')            # process
put(0,0,0,0,1|1<<26,struct.pack('<II',1700000000,5)) # timestamp
base=900_000_000_000
put(0,base,0,0,2|1<<26,b'phase one')
put(1,base+50,0,0,2|1<<8|1<<26,struct.pack('<Q',77)+b'phase two')
evs=[]
for i,(t,w,dev,o,l,lat) in enumerate(ops(N)):
    cpu=i%2
    if i%8==5: sec,n,cat=(1<<64)-1 if i==5 else 0,0,W|F|S
    elif i%8==6: sec,n,cat=o//512,l*4,W|DI|S
    elif i==3: sec,n,cat=o//512,l,W|F|FUA|S|M
    else: sec,n,cat=o//512,l,(W|S if w else R)
    t+=base
    evs.append((t-3000,cpu,sec,n,Q|cat)); evs.append((t-2500,cpu,0,0,10|(1<<20)))   # queue, plug
    evs.append((t,cpu,sec,n,D|cat)); evs.append((t+lat,1-cpu,sec,n,C|cat))
evs.sort(key=lambda e:e[0])
for t,cpu,sec,n,act in evs: put(cpu,t,sec,n,act)
for cpu in (0,1): save(f'sample.blktrace.{cpu}',b''.join(files[cpu]))
